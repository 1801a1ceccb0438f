"""A factory that is recorded while a server is killed, a robot is paused and a network is cut; and what its recording says."""
