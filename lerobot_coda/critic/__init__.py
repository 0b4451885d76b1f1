"""Why a policy failed: diagnoses, their clusters, and the tests a diagnosis must pass before it may spend budget."""
