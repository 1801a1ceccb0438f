"""Web page of a factory: views, operator commands, and the server for both."""
