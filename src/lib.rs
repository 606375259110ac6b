//! tidegate: see README.md.
