//! Azure Resource Manager: `/subscriptions/ID/resourceGroups/NAME/providers/NAMESPACE/TYPE/NAME`.
//!
//! Upper and lower case do not matter in names there. ARM counts reads, writes and deletes of a
//! subscription (or of a tenant, for what belongs to none) separately, and a POST as a write.

use http::Method;

use super::{Head, Words, is_read};

pub(super) fn read(head: &Head<'_>) -> Words {
    let path = head.uri.path().to_ascii_lowercase();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let after = |word: &str| {
        let at = segments.iter().position(|segment| *segment == word)?;
        segments.get(at + 1).copied()
    };
    // The last namespace counts: an extension of a resource belongs to its own provider.
    let provider = segments.iter().rposition(|segment| *segment == "providers");
    let below = provider.map_or(&[][..], |at| segments.get(at + 1..).unwrap_or_default());
    let (service, types) = match below.split_first() {
        Some((namespace, rest)) => (*namespace, rest.iter().step_by(2).copied().collect::<Vec<_>>().join("/")),
        None => ("", segments.iter().step_by(2).next_back().copied().unwrap_or_default().to_owned()),
    };
    let reads = is_read(head.method);
    let does = match *head.method {
        _ if reads => "reads",
        Method::DELETE => "deletes",
        _ => "writes",
    };
    Words {
        service: service.into(),
        region: after("locations").unwrap_or_default().into(),
        account: after("subscriptions").or_else(|| after("tenants")).unwrap_or_default().into(),
        action: format!("{does}/{types}"),
        reads,
        ..Words::default()
    }
}

/// Returns the name of Azure Resource Manager's quota for a call, as in its responses.
pub(super) fn resource(head: &Head<'_>, words: &Words) -> String {
    let path = head.uri.path().to_ascii_lowercase();
    let whose = if path.starts_with("/subscriptions/") { "subscription" } else { "tenant" };
    format!("{whose}-{}", words.action.split('/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::tests::words;
    use super::*;
    use crate::dialect::Dialect;

    #[test]
    fn a_resource_is_read_with_its_subscription_and_type() {
        let read = |method: Method, target: &str| {
            let words = words(Dialect::Azure, &method, target, &[], b"");
            (words.account, words.service, words.action, words.reads)
        };
        let vm = "/subscriptions/0F-1/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/vm1";
        let of =
            |account: &str, service: &str, action: &str, reads| (account.into(), service.into(), action.into(), reads);
        assert_eq!(read(Method::GET, vm), of("0f-1", "microsoft.compute", "reads/virtualmachines", true));
        assert_eq!(
            read(Method::PUT, &format!("{vm}/extensions/e?api-version=2024-01-01")),
            of("0f-1", "microsoft.compute", "writes/virtualmachines/extensions", false)
        );
        assert_eq!(
            read(Method::POST, &format!("{vm}/start")),
            of("0f-1", "microsoft.compute", "writes/virtualmachines/start", false)
        );
        assert_eq!(
            read(Method::DELETE, &format!("{vm}/providers/Microsoft.Authorization/locks/l")),
            of("0f-1", "microsoft.authorization", "deletes/locks", false)
        );
        assert_eq!(read(Method::GET, "/subscriptions/s/resourcegroups"), of("s", "", "reads/resourcegroups", true));
        assert_eq!(read(Method::GET, "/subscriptions"), of("", "", "reads/subscriptions", true));
        assert_eq!(
            read(Method::GET, "/providers/Microsoft.Management/managementGroups/g"),
            of("", "microsoft.management", "reads/managementgroups", true)
        );
        assert_eq!(read(Method::GET, "/"), of("", "", "reads/", true));
    }

    #[test]
    fn an_operation_is_read_in_its_location() {
        let target = "/subscriptions/s/providers/Microsoft.Compute/locations/westeurope/operations/o?api-version=1";
        let words = words(Dialect::Azure, &Method::GET, target, &[], b"");
        assert_eq!((words.region.as_str(), words.action.as_str()), ("westeurope", "reads/locations/operations"));
    }
}
