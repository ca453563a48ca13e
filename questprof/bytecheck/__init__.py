"""Counted bytes against the ledger: points, counts to records, judgements, and how they are shown."""
