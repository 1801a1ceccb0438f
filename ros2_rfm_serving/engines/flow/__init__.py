"""Our sampling loop around flow-matching, diffusion and regression models."""
