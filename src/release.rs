//! The version of the build, and the name of its image.
//!
//! A release is built from sources in which `.ci/release/stamp` has put the name of the released
//! image in the place of the one below, here and in `deploy/`. So whatever is built from them, also
//! from the package on crates.io, names an image that a registry has.

/// The image without its tag. Names below `registry.example` are reserved, so that no registry has
/// them.
macro_rules! repository {
    () => {
        "registry.example/tidegate"
    };
}

/// The image of this version.
pub const IMAGE: &str = concat!(repository!(), ":", env!("CARGO_PKG_VERSION"));

/// Returns true for a build that is not a release: no registry has its image.
pub fn is_development() -> bool {
    is_reserved(IMAGE)
}

/// Returns the version as people read it, which says if the build is not a release.
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
