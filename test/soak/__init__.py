"""A factory that lives for long under faults drawn from a seed, and what its recording says afterwards."""
