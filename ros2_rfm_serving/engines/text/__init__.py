"""Text models: planners and judges."""
