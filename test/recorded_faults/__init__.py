"""A factory that is recorded while its processes, its recorder and its disk fail; and its recordings beside what was true."""
