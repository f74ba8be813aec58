"""Trac on the tenants' databases, in the process that serves them all."""
