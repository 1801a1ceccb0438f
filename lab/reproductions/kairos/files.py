"""Names of the recorded data."""

SWEEP, TRACES = "sweep.csv", "traces.csv"
