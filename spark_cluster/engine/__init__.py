"""The inference engine behind one interface, and what it runs on."""
