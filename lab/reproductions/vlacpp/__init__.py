"""Reproduction of vla.cpp (the paper): its studies with the embedded policy."""
