"""Conformance kits that audit what they are given: learners, selections, the papers' learners."""
