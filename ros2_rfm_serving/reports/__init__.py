"""Tables and charts that several commands show."""
