"""Published architectures of vision-language-action models, each split for our loop (vla.cpp §3)."""
