"""Latency profiles L[model, gpu](batch, rate), measured or derived (ROSA §3.4.2), and the service laws behind derived ones."""

from ros2_rfm_serving.profiles.files import HEADER, format_rows, load_profiles, parse_profiles, read_rows
from ros2_rfm_serving.profiles.measured import MeasuredService, measured_service
from ros2_rfm_serving.profiles.service import (
    ContinuousService,
    FixedService,
    ProcessorSharing,
    ServiceLaw,
    SteppedService,
    Wave,
    unit_mean_factors,
)
from ros2_rfm_serving.profiles.stragglers import with_stragglers
from ros2_rfm_serving.profiles.table import ARRIVALS, COLUMNS, Profile, ProfileRow, column_of

__all__ = [
    "ARRIVALS",
    "COLUMNS",
    "ContinuousService",
    "FixedService",
    "MeasuredService",
    "HEADER",
    "ProcessorSharing",
    "Profile",
    "ProfileRow",
    "ServiceLaw",
    "SteppedService",
    "Wave",
    "column_of",
    "format_rows",
    "load_profiles",
    "measured_service",
    "parse_profiles",
    "read_rows",
    "with_stragglers",
    "unit_mean_factors",
]
