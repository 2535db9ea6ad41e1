"""The workshop: small programs that look at the repository. Nothing in the package depends on them."""
