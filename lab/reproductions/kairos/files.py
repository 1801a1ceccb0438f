"""Names of the recorded files."""

SWEEP, TRACES = "sweep.csv", "traces.csv"
