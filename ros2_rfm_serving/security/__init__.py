"""Authorization (docs/security.md): certificates, their permissions on DDS and on Zenoh, tokens, and TLS of the project's
endpoints."""
