"""Co-evolution of a simulation data engine and an action policy."""
