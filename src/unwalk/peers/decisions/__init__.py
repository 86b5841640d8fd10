"""How the peers decide: votes, ballots, and what was decided."""
