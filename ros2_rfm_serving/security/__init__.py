"""Who may do what (docs/security.md): certificates, what each allows on DDS and on Zenoh, tokens, and TLS of our own doors."""
