"""Process that searches placements and plans whole factories for the scheduler node (`planner.py`).

It reads orders from a pipe and writes answers to it until the other end closes. It does not use ROS. Signals of a terminal do not
reach it; it ends with the node, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Catalogue
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.ros.node.process import PR_SET_PDEATHSIG
from ros2_rfm_serving.scheduler import AdmissionOffers, PlanJob, answered
from ros2_rfm_serving.scheduler.plan_job import ExpectedActions
from ros2_rfm_serving.simulation.trial import virtual_time_trial
from ros2_rfm_serving.types import Schedule

NICENESS = 5
"""Niceness of the process: servers and robots of the same machine have precedence."""


class Job(NamedTuple):
    order: PlanJob
    profile: Profile
    catalogue: Catalogue


class Made(NamedTuple):
    schedule: Schedule
    work: float
    complete: bool
    holds: bool
    """Every promise is known to hold."""
    doing: ExpectedActions | None


class Refused(NamedTuple):
    code: int
    problem: str
    """Error message, with a traceback when `code` is not one of this package's errors."""


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(NICENESS)
    connection = Connection(int(sys.argv[1]))
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send(_done(job))


def _done(job: Job) -> Made | AdmissionOffers | Refused:
    try:
        planned = answered(job.order, job.profile, job.catalogue, trial=virtual_time_trial(job.catalogue, job.profile))
    except RfmError as error:
        return Refused(error.code, str(error))
    except Exception:
        return Refused(0, traceback.format_exc())
    if isinstance(planned, AdmissionOffers):
        return planned
    return Made(planned.fleet.schedule, planned.work, planned.complete, bool(planned.fleet.held), planned.doing)
