"""Prediction of a placement's performance: latency curves, convoys, goodput."""
