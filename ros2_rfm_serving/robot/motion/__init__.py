"""Commands of the robot: action queue, limits, fallback ladder and fail-safe states."""
