"""The figures of papers, run anew."""
