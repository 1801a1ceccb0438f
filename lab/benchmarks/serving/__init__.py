"""`rfm bench serving`: our servers beside other serving systems."""
