"""The critic bench: failures planted with a known cause, stage and time, and how right a critic is about them."""
