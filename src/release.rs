//! The version of the build, and the name of its image.
//!
//! For a release, `.ci/release/stamp` replaces the name of the image below and in `deploy/`. So all
//! builds of the released sources, also of the package on crates.io, name an image that exists.

/// The image of this version. Names below `registry.example` are reserved, so that none ever exists.
pub const IMAGE: &str = concat!("registry.example/tidegate:", env!("CARGO_PKG_VERSION"));

/// Returns true for a build that is not a release: its image does not exist.
pub fn is_development() -> bool {
    is_reserved(IMAGE)
}

/// Returns the version to show, with a mark if the build is not a release.
pub fn version() -> &'static str {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    const DEVELOPMENT: &str = concat!(env!("CARGO_PKG_VERSION"), " (development build)");
    if is_development() { DEVELOPMENT } else { VERSION }
}

fn is_reserved(image: &str) -> bool {
    image.starts_with("registry.example/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_build_whose_image_has_a_reserved_name_is_for_development() {
        assert!(is_reserved("registry.example/other:1.2.3"));
        assert!(!is_reserved("registry.example.org/tidegate:1.2.3"));
        assert!(!is_reserved("ghcr.io/somebody/tidegate:1.2.3"));
        assert_eq!(is_development(), version().ends_with(" (development build)"));
        assert!(IMAGE.ends_with(concat!("/tidegate:", env!("CARGO_PKG_VERSION"))));
    }
}
