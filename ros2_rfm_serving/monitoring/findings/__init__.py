"""Why a factory does not do as it should: what was seen of it for a few seconds, and the causes that speak from it."""
