//! Query parameters. One pass finds them; only escapes cost an allocation.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::path;

/// Parameters of a Kubernetes request, still escaped. Each is the first of its name, as in Go's
/// `url.Values`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Query<'a> {
    pub(super) dry_run: Option<&'a str>,
    pub(super) field_selector: Option<&'a str>,
    pub(super) follow: Option<&'a str>,
    pub(super) limit: Option<&'a str>,
    pub(super) send_initial_events: Option<&'a str>,
    pub(super) timeout: Option<&'a str>,
    pub(super) timeout_seconds: Option<&'a str>,
    pub(super) watch: Option<&'a str>,
}

impl<'a> Query<'a> {
    /// Reads the parameters as Go's `url.ParseQuery` does, without pairs with a `;` or a malformed
    /// escape.
    pub(super) fn read(query: Option<&'a str>) -> Self {
        let mut found = Self::default();
        for (name, value) in pairs(query) {
            let place = match unescape(name).as_ref() {
                "dryRun" => &mut found.dry_run,
                "fieldSelector" => &mut found.field_selector,
                "follow" => &mut found.follow,
                "limit" => &mut found.limit,
                "sendInitialEvents" => &mut found.send_initial_events,
                "timeout" => &mut found.timeout,
                "timeoutSeconds" => &mut found.timeout_seconds,
                "watch" => &mut found.watch,
                _ => continue,
            };
            place.get_or_insert(value);
        }
        found
    }
}

/// Returns the well-formed pairs of a query in order, with escapes undone.
pub fn query_pairs(query: Option<&str>) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    pairs(query).map(|(name, value)| (unescape(name), unescape(value)))
}

/// Returns the well-formed pairs of a query, still escaped.
fn pairs(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let well_formed = pairs.filter(|pair| !pair.contains(';') && path::is_well_formed(pair));
    well_formed.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Returns a boolean parameter as apimachinery reads it: absent, `0` and `false` are false;
/// everything else is true, also the empty value.
pub(super) fn is_set(value: Option<&str>) -> bool {
    value.map(unescape).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
}

/// Returns true if a parameter is a 64-bit integer, or absent.
pub(super) fn is_integer(value: Option<&str>) -> bool {
    value.is_none_or(|raw| unescape(raw).parse::<i64>().is_ok())
}

/// Returns a name or value with its escapes undone: a `+` is a space, and bytes that are not UTF-8 are
/// replaced.
pub(crate) fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.contains(['%', '+']) {
        return Cow::Borrowed(raw);
    }
    Cow::Owned(percent_decode_str(&raw.replace('+', " ")).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_name_counts_and_broken_pairs_do_not() {
        let query = Query::read(Some("watch=0&watch=1&limit=%zz&limit=5&a;watch=1&%74imeout=3s&&follow"));
        assert_eq!(query.watch, Some("0"));
        assert_eq!(query.limit, Some("5"));
        assert_eq!(query.timeout, Some("3s"));
        assert_eq!(query.follow, Some(""));
    }

    #[test]
    fn booleans_are_read_as_apimachinery_reads_them() {
        for (value, set) in [
            (None, false),
            (Some("0"), false),
            (Some("FALSE"), false),
            (Some(""), true),
            (Some("no"), true),
            (Some("%30"), false),
        ] {
            assert_eq!(is_set(value), set, "{value:?}");
        }
    }
}
