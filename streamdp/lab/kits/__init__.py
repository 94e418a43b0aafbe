"""Conformance kits that audit what they are given: learners and selections."""
