"""Latency profiles L[model, gpu](batch, rate), as measured (ROSA §3.4.2)."""

from ros2_rfm_serving.profiles.table import COLUMNS, Profile, ProfileRow, load_profiles, parse_profiles

__all__ = ["COLUMNS", "Profile", "ProfileRow", "load_profiles", "parse_profiles"]
