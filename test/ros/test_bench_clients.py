"""The robots of `rfm bench serving --rate`: each is asked at its own instants, and who still waits is left out."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from types import SimpleNamespace

from lab.benchmarks.serving import clients as program
from lab.benchmarks.serving.peers.run import dues

RATE_HZ, SENT = 400.0, 200


def test_each_session_is_asked_at_its_own_rate_and_one_that_waits_is_left_out() -> None:
    sessions = {f"bench_{i}": SimpleNamespace(waits=i == 2) for i in range(4)}
    sent: list[SimpleNamespace] = []
    enough = threading.Event()

    def send(client: SimpleNamespace) -> None:
        sent.append(client)
        node.asking = len(sent) < SENT
        if not node.asking:
            enough.set()

    node = SimpleNamespace(_rate_hz=RATE_HZ, _sessions=sessions, asking=True, num_left_out=0, _send=send)
    sender = threading.Thread(target=program.Clients._send_at_rate, args=(node,))
    sender.start()
    assert enough.wait(60)
    sender.join(60)

    times = Counter(next(name for name, one in sessions.items() if one is client) for client in sent)
    instants = sorted((due_s, i) for i in range(4) for due_s in itertools.islice(dues(i, RATE_HZ), SENT))
    asked = [i for _, i in instants if i != 2][:SENT]
    assert times == {f"bench_{i}": n for i, n in Counter(asked).items()}
    last = [at for at, (_, i) in enumerate(instants) if i != 2][SENT - 1]
    assert node.num_left_out == sum(i == 2 for _, i in instants[:last])
