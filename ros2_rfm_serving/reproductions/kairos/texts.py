"""What the page of `rfm reproduce kairos` says between its tables."""

from __future__ import annotations

INTRODUCTION = """# Kairos §5, reproduced

Recorded Meta-World tasks, replayed in virtual time against the model server of the floor. What differs from the paper is the
policies, the tasks and the GPU, which is a service law; server, dispatch and horizons are the code that runs live.

    rfm reproduce kairos --out docs/reproductions/kairos             # this page, from the shipped sweeps and traces (config/kairos)
    rfm reproduce kairos --figure 12 --workload flow --out /tmp/k    # one figure of one workload
    rfm reproduce kairos --workload flow --record 100 --out /tmp/k   # its sweep and traces anew; goes on where it was interrupted

A table has a column per workload; **no** says that a claim fails there. *At least* and *at most* say what is compared; where
the paper gives a range over its workloads, its lowest figure stands here.
"""
SET_UP = """## Set-up

{workloads}
The diffusion and the autoregressive policy are recorded on two of their four tasks, with 20 episodes a setting: intervals are
wide there, and both tasks forgive long horizons. So do the ten that are done from images alone (`images`), with 10 episodes a
setting and 100 over the tasks. `--record` adds to what is there; a workload is a row in `reproductions/kairos/workloads.py`.

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
  points less often, and not significantly so (Newcombe's 95 % interval of the difference, from Wilson's). The threshold by the
  same rule against the same best one: of those the one that executes most. So an episode more or less decides nothing.
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
deviation over mean). *As recorded*: each task has its own horizon, and those that take longest have the shortest ones. Below it the
same episodes, every round of which executes so many steps, against FIFO with the same:
"""
SUCCEEDING = """At the highest rate, with all scenes, and with those alone that succeed under every horizon, each against static
horizons with the same scenes (%):
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
the diffusion policy the ratio that the rule compares hardly correlates between neighbouring actions then (0.01 to 0.19, ten
steps, 16 episodes of push and of door-open; 0.61 to 0.67 from the mean), and where a chunk is cut is chance.

With noise (standard deviation 0.3) on every executed action no update can foretell what happens.""",
    ),
    "12": (
        "task latency by arrival rate",
        """Bars from P25 to P95. By wait ratio every task waits for a like share of its life, and the first request of a task,
which has not waited yet, comes last. What that gains depends on how alike tasks are in their numbers of requests: the more they
differ, the more of the waiting goes from the longest to the shortest, whose P25 then grows. *The scheduler alone* fails on flow
and diffusion for that reason: with one horizon of up to 12 steps for all tasks the wait ratio gains as much on flow as in the
paper, on the mean, P25 and P95; with 24, three requests a task, half of it, for it takes rounds, too (table of the same episodes
cut anew; so do images). The autoregressive policy's tasks are alike as recorded. Diffusion's are unlike with any horizon: its
failures ask until step 300. *Both* and *against least attained* fail where the scheduler alone does; `least_attained` has the
lowest P25 of all, since new tasks come first, and pays for it with a P95 of up to 40 s.

`balanced`, our default, lets short tasks go first: better on the mean and P25, at the cost of P95. Where tasks are alike
(autoregressive) there is no shorter one, and what it gains for some it takes from others. Past the peak everybody waits, and what
is left of the horizon's gain is the requests that it saves tasks that succeed: 17 % on flow (5.3 to 4.4), 18 % on diffusion (3.6
to 3.0), none on images and the autoregressive policy; so *past the peak* fails.

Where the horizon's gain comes from: on flow from one task still. Without door-open it costs 24 %, for on push no threshold that
keeps up executes as much as 12 static steps do (8.3 against 11.3). On diffusion from push; its P95 is that of a failure, which
executes for 10 s however short it waits. The autoregressive policy never fails when it executes whole chunks of 8 on these tasks:
there is nothing to gain, and t = 3 executes a little less than they do. *One t for all*: of the diffusion policy 24 static steps
keep up by a hair (95 of 100 %, n = 40), and no threshold of its sweep executes whole chunks.

On images there is nothing to gain either: whole chunks of 24 succeed in 97 of 100 episodes, 4 steps a round in 97, and the highest
threshold of the sweep, 0.8, executes 16.8 where whole chunks come to 20.6. And with 10 episodes a single one decides after all: on
window-open each threshold failed once, static 8 and 16 never, so none keeps up, and the most successful is the shortest of them.
Without that task *both* cost 1 % in place of 47. The scheduler alone gains 9 % on the mean and 26 % on P95; with 4 or 8 steps a
round for all tasks 22 to 24 % on either, and 17 to 23 % on P25.
With 20 episodes the margin lets pass what loses more in other scenes: diffusion succeeds in 93.2 % with `static`, in 97.8 % with
`static_best`.""",
    ),
    "13": (
        "edge, cloud and hybrid",
        """With one batch in flight the cloud beside an edge idles for a round trip between two batches. The server counts what
is on its way when it weighs the cloud's answer against the edge's queue (`server/tiers.py`). What the edge's next
batch has room for stays, and of what is behind it only that goes which the cloud would have answered before the edge
begins with it (Algorithm 1, phase 3): so a hybrid keeps much on a GPU that takes twice as long. The cloud alone has
twice the edge's throughput here, and 100 ms a request; it wins until it is full itself, as with mimic-video in the
paper. Both figures depend on that, and both have the paper's direction where it changes (second table): with a cloud that takes
as long as the edge a hybrid is 30 % below the cloud alone at the highest rate and about 60 % past the peak, and at four times the
edge's rate it is below the quick cloud, too. Against the edge alone: at the highest rate the dynamic horizon has left of the edge's
overload of 1.5 some 1.24 (flow), and a tenth of the requests overflows; at twice the rate the hybrid is half of the edge.""",
    ),
    "14": (
        "fleets that work through a set of tasks",
        """A robot takes the next task as soon as it has finished one: who waits does not ask, and the mean latency is the number of
robots over the throughput. Requests per task decide that; dispatch only moves latency between tasks. Ten robots do not fill the
edge: with static horizons and FIFO they stand still for 5 % of their time (images and diffusion 2, autoregressive 12), and more
than that cannot be gained. Fifty and a hundred do: the dynamic horizon saves 17 % of all requests on flow, 7 on diffusion and
none on images and the autoregressive policy, and the mean follows.""",
    ),
    "15": ("number of wait-ratio buckets", "At the highest rate; *none* ranks by the wait ratio itself."),
    "16": (
        "order inside a bucket",
        """At the highest rate. Longest execution first takes 2.0 +- 0.5 % off the mean, 3.3 +- 0.9 % off P25, and nothing off P95
(-0.5 +- 1.4 %; 20 seeds, 95 %): P95 is of tasks that execute little at a time (13.4 steps a round and 11 requests in the slowest
tenth, 16.8 and 4 in the others), and so come last in their bucket.""",
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
