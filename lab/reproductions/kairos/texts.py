"""Texts of the page of `rfm reproduce kairos` between its tables."""

from __future__ import annotations

INTRODUCTION = """# Kairos §5, reproduced

Recorded Meta-World tasks, replayed in virtual time against the model server of the floor. What differs from the paper is the
policies, the tasks and the GPU, which is a service law; server, dispatch and horizons are the code that runs live.

    rfm reproduce kairos --out docs/reproductions/kairos             # this page, from the sweeps and traces of the lab
    rfm reproduce kairos --figure 12 --workload flow --out /tmp/k    # one figure of one workload
    rfm reproduce kairos --workload flow --record 100 --out /tmp/k   # its sweep and traces anew; goes on where it was interrupted

A table has a column per workload; **no** says that a claim fails there. *At least* and *at most* say what is compared; where
the paper gives a range over its workloads, its lowest figure stands here.
"""
SET_UP = """## Set-up

{workloads}
The diffusion and the autoregressive policy are recorded on two of their four tasks, with 20 episodes a setting: intervals are
wide there, and both tasks forgive long horizons. So do most of the ten that are done from images alone (`images`), with 40
episodes a setting and 400 over the tasks. `--record` adds to what is there; a workload is a row in
`lab/reproductions/kairos/workloads.py`.

- **Traces.** How many actions every round of an episode executed, recorded in scenes that the sweep did not have. Robots run at
  {rate:g} Hz and ask {lead} actions ahead; they stand still while a chunk is late.
- **Edge** (RTX A6000, SmolVLA): {edge} ms for a batch of B, at most {batch}, {jitter:.0%} scatter. 50 ms alone is what an
  RTX 3060 (54.8) and an RTX 5090 (49.6) take (vla.cpp); with B it grows as SGLang's pi0.5 does on an H100.
- **Cloud** (A100): half of that, {cloud} ms, 100 ms away (there and back), 1 Gbit/s, {payload:g} MB an observation, {in_flight}
  batches in flight. Wi-Fi: {wifi:g} ms one way.
- **Load.** {tasks} tasks per run drawn with replacement, {seeds} seeds pooled; SLO of a request {slo:g} s. Rates of arrival are
  shares of what the edge can do of the workload with static horizons and full batches: {top:g} is the highest of the paper's
  figures, {beyond} are past the peak, more than any horizon lets it do.
- **Horizons.** Of each task the largest static one that succeeds as often as the best static one does: at most {margin:g}
  points or one episode less often, whichever is more, and not significantly so (Newcombe's 95 % interval of the difference, from
  Wilson's). The threshold by the same rule against the same best one: of those the one that executes most. So one failure more
  than the best one's decides nothing, however few episodes there are. t = inf is among the thresholds: no action exceeds it, so it
  executes whole chunks, and its sweep and traces are those of the longest static horizon. A live session says as much with a large
  t. Without it a static baseline might execute whole chunks where the dynamic horizon, whose sweep ended below them, might not.
  `static_best` is what the paper does: the largest of the most successful. `.._one`: one H, one t for all tasks.

{horizons}
What the replayed scenes execute and ask with each of them:

{asked}"""
PARTS = """### Each part's own share

Mean task latency below FIFO with static horizons: with the dynamic horizon alone, with the scheduler alone, with both, and how
much the scheduler adds to the horizon.

![each part's own share](parts.png)
"""
WITHOUT = """One task left out, at the highest rate of what is left, mean against FIFO with static horizons:
"""
CUT = """The scheduler alone, at the highest rate, and how alike the tasks are in their numbers of requests (*spread*: standard
deviation over mean; *lowest quarter*: what a quarter of them does not exceed, over mean). *As recorded*: each task has its own
horizon, and those that take longest have the shortest ones. Below it the same episodes, every round of which executes so many
steps, against FIFO with the same; last against least attained:
"""
SUCCEEDING = """At the highest rate, mean, P25 and P95 (%) below static horizons with FIFO and with least attained service: with
all scenes, and with those alone that succeed under every horizon.
"""
WAITS = """What the first request of a task waits, and a later one; and how low P25 is where the edge is half idle (load 0.5, first
come, first served), which no order of service undercuts:
"""
FLEET = """Static horizons *to* dynamic ones, first come, first served:
"""
NO_QUICKER_CLOUD = """Where the cloud alone is full, and a cloud that takes as long as the edge:
"""
FIGURES = {
    "11": (
        "success against the mean executed horizon",
        """Synchronous rounds: the world stands still while the engine works. `confidence` is the paper's rule; of tokens it is
the product of their probabilities. `curvature` cuts where the solver's path bends by more than t: absolute, not relative to
an action's own updates. A static horizon has one value for all tasks here, and so has a threshold.

Policies sample from the mean of the noise, and so the updates tell something. Started from full noise they mostly remove it: of
the diffusion policy (ten steps, 16 episodes a task) the ratio that the rule compares correlates by 0.33 between neighbouring
actions of push then, by 0.14 of door-open, and from the mean by 0.58 and 0.47
(`pytest -s -m patient test/unit/lab/reproductions/test_kairos_updates.py`). Where a chunk is cut is more of a chance then.

With noise (standard deviation 0.3) on every executed action no update can foretell what happens.""",
    ),
    "12": (
        "task latency by arrival rate",
        """Bars from P25 to P95. Why claims fail is in the tables below: each part's share, one task left out, the same episodes cut
anew, failing scenes left out, what first requests wait.

*The scheduler alone.* By wait ratio every task waits for a like share of its life, and the first request of a task, which has not
waited yet, comes last. What that gains depends on how alike tasks are in their numbers of requests: the more they differ, the more
of the waiting goes from the longest to the shortest, whose P25 then grows. On flow each task has its own horizon as recorded, and
the spread is twice that of the same episodes cut alike; with up to 12 steps for all tasks the wait ratio gains as much as in the
paper, on the mean, P25 and P95. With 24, three requests a task, it gains half of it, for it takes rounds, too. Diffusion's mean and
P25 are its failures', which ask until step 300: without them the mean gains 13 % in place of losing 1, P25 14 in place of 0.
On images the mean and P95 hold, and P25 gains 4 %; with 4 or 8 steps a round 27 and 21: rounds again.

*Both.* On diffusion the failures again: without them the mean gains 38 %, P25 32 and P95 46, in place of 26, 24 and 22. Flow's P25
lacks what the scheduler takes from short tasks. On the autoregressive policy the horizon has nothing to give: whole chunks of 8
never fail on these tasks, so that t is inf, and what is there is the scheduler's. On images the horizon costs more than
the scheduler gains (below).

*Against least attained, P25.* New tasks come first there: a first request waits 0.3 s (by wait ratio 2.7 on flow, 2.4 on images,
2.1 on diffusion), and who asks least has gone before the others are served again. Where the lowest quarter of the tasks asks at
most three quarters as often as the mean (flow as recorded, images and diffusion however they are cut), P25 is theirs, and little
above that of an idle edge: 2.67 of 1.94 s on flow, 2.53 of 1.60 on images, 2.37 of 1.80 on diffusion, so that no order takes more
than 28, 37 and 24 % off. Where it asks nearly as often (autoregressive as recorded, flow with 4 or 8 steps a round), the wait ratio
alone is 43 to 48 % below. `least_attained` pays with a P95 of up to 40 s.

`balanced`, our default, lets short tasks go first: better on the mean and P25, at the cost of P95. P25 of both stays a little short
of the paper's 39.5: of scenes that succeed it is 42 on flow, 37 on diffusion and 35 on images, and where tasks are alike
(autoregressive) there is no shorter one, and what it gains for some it takes from others. Past the peak everybody waits, and what
is left of the horizon's gain is the requests that it saves: 21 % on flow (6.1 to 4.8 a task), 10 on diffusion (4.8 to 4.3; of tasks
that succeed 14), while images ask 39 % more often (4.0 to 5.6) and the autoregressive policy as often, where `balanced` itself
costs 14 %; so *past the peak* fails.

*The horizon.* On flow its gain is of one task still. Without door-open it costs 16 %, for on push no threshold that keeps up
executes as much as 12 static steps do (8.3 against 11.3). On diffusion it is of push; its P95 is that of a failure, which executes
for 10 s however short it waits (without failures it gains 35 %). *One t for all*: on images, diffusion and the autoregressive
policy whole chunks keep up over the tasks together, so that both execute them, and what is left is what `balanced` gains by itself.

On images the horizon costs, for one task again. Whole chunks keep up on seven of ten, and both execute them. On window-open they
fail in 4 of 40 episodes, and t = 0.1, 0.3 and 0.8 in 3, 5 and 4; of static horizons 8 steps in none, and 16 in one. So no threshold
keeps up, and the one that fails least executes 6.4 steps a round in place of 14.8. Two of a hundred replayed scenes fail (there and
on faucet-close), and execute for 10 s. Without that task both gain 11 % in place of costing 34. That is why the gap does not widen
there, and why its fleets take longer.

With 20 episodes the margin lets pass what loses more in other scenes: diffusion succeeds in 93.2 % with `static`, in 97.8 % with
`static_best`.""",
    ),
    "13": (
        "edge, cloud and hybrid",
        """With one batch in flight the cloud beside an edge idles for a round trip between two batches. The server counts what
is on its way when it weighs the cloud's answer against the edge's queue (`server/engine_queues.py`). What the edge's next
batch has room for stays, and of what is behind it only that goes which the cloud would have answered before the edge
begins with it (Algorithm 1, phase 3): so a hybrid keeps much on a GPU that takes twice as long. The cloud alone has
twice the edge's throughput here, and 100 ms a request; it wins until it is full itself, as with mimic-video in the
paper. Both figures depend on that, and both have the paper's direction where it changes (second table): with a cloud that takes
as long as the edge a hybrid is 25 % or more below the cloud alone at the highest rate and about 60 % past the peak, and at four
times the edge's rate it is below the quick cloud, too. Against the edge alone: at the highest rate the dynamic horizon has left of
the edge's overload of 1.5 some 1.19 (flow), and 8 % of the requests overflow; at twice the rate the hybrid is half of the edge.""",
    ),
    "14": (
        "fleets that work through a set of tasks",
        """A robot takes the next task as soon as it has finished one: who waits does not ask, and the mean latency is the number of
robots over the throughput. Requests per task decide that; dispatch only moves latency between tasks. Ten robots do not fill the
edge: with static horizons and FIFO they stand still for 5 % of their time on flow, 2 on images and diffusion, 12 on the
autoregressive policy, and more than that cannot be gained; on flow the longer horizons take 2 % more steps a task besides (so at
load 0.5 above). Fifty and a hundred do fill it: the dynamic horizon saves 21 % of all requests on flow, 7 on diffusion,
none on the autoregressive policy, and the mean follows; images ask 43 % more often. The paper's horizons execute up to 2.67 times
as much at the same success, ours 0.95 to 1.09 (Figure 11): that is what a fleet can be spared.""",
    ),
    "15": ("number of wait-ratio buckets", "At the highest rate; *none* ranks by the wait ratio itself."),
    "16": (
        "order inside a bucket",
        """At the highest rate. Longest execution first gains a little on the mean and on P25, and nothing on P95, over 20 seeds
(the claim's figure; with 95 % intervals below): P95 is of tasks that execute little at a time, and so come last in their bucket.
Three seeds, as the bars have them, say 2.5 % on P95: that is chance.""",
    ),
    "17": ("the network between edge and cloud", "Hybrid, at the highest rate."),
    "refetch": (
        "Newer observations",
        """A robot whose request will run next, and whose observation will be older than 50 ms by then, is asked for a newer one,
if that arrives before the engine is free (Kairos §3.2.2, Algorithm 1, line 21). *Age*: of an observation when its
batch begins; *steps*: that the robot executed in this time, which is what makes it stale. What a robot does is
recorded, so this says what newer observations cost and how much newer they are, not what success they bring. Only
what runs next on the edge is asked for again: requests for the cloud are not.

What a step is worth to the same policy says its [closed loop](../../rtc.md) (`rfm bench rtc`): chunks from observations 2 control
steps old succeed in 120 of 120 episodes, 4 steps old in 115 (116 in lockstep), 8 in 111; some 1.2 points a step. Robots that ask 8
ahead are spared 0.7 steps where the edge is just full and 2.3 at the highest rate: one to three points.""",
    ),
}
