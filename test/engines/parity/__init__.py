"""Our architectures against their authors' code: what is recorded there, and compared here."""
