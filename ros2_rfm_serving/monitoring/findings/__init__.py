"""Diagnosis of a factory: observations of a few seconds, and the causes of problems that they show."""
