"""The processes of a factory as manifests for whatever runs them on many machines: Kubernetes, Compose or systemd."""
