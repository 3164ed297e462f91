"""Do the tests notice a fault? Faults are drawn over the code; each is run against the tests of its line."""
