//! Costs: the tokens of a call, if some calls cost more than others.

use super::matcher::Subject;
use crate::api::{Verb, query_pairs};

/// How the cost of a call is determined. The class bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostBy {
    /// All calls of the class cost the same.
    Number(u16),
    /// The cost is read from each call.
    Read(CostReader),
}

words! {
    /// The part of a call to read its cost from, named as in the configuration.
    pub enum CostReader {
        /// The `limit` of a list on a Kubernetes gate: one token for each hundred objects, as in
        /// kube-apiserver's estimate of seats (`list_work_estimator.go`). Any other call costs one.
        List = "list",
        /// GitHub's points for GraphQL: one for a query, five for a mutation. Source: "Rate limits
        /// and query limits for the GraphQL API".
        Graphql = "graphql",
        /// The number of instances in a call to EC2. Source: EC2 developer guide, "Request
        /// throttling", "Resource rate limiting".
        Instances = "instances",
    }
}

// === impl CostBy ===

impl CostBy {
    /// Returns the cost of a request.
    pub(super) fn of(self, request: &Subject<'_>) -> u16 {
        match self {
            Self::Number(tokens) => tokens,
            Self::Read(CostReader::List) if request.call.verb == Verb::List => of_list(request.query),
            Self::Read(CostReader::List) => 1,
            Self::Read(CostReader::Graphql) => match request.words {
                Some(words) if words.reads => 1,
                _ => MUTATION,
            },
            Self::Read(CostReader::Instances) => request.words.map_or(1, |words| words.instances.max(1)),
        }
    }
}

/// Returns the cost of a list with this query; `u16::MAX` without a limit.
fn of_list(query: Option<&str>) -> u16 {
    let limit = query_pairs(query).find(|(name, _)| name == "limit");
    let limit = limit.and_then(|(_, value)| value.parse::<u64>().ok()).filter(|limit| *limit > 0);
    limit.map_or(u16::MAX, |limit| u16::try_from(limit.div_ceil(OBJECTS)).unwrap_or(u16::MAX))
}

/// The tokens of a GraphQL mutation.
const MUTATION: u16 = 5;

/// The number of listed objects for one token.
const OBJECTS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_costs_by_the_hundred_that_it_asks_for() {
        for (query, cost) in [
            (Some("limit=1"), 1),
            (Some("limit=100"), 1),
            (Some("labelSelector=a&limit=101"), 2),
            (Some("limit=500&continue=x"), 5),
            (Some("limit=0"), u16::MAX),
            (Some("limit=-1"), u16::MAX),
            (Some("limit=99999999999999999999"), u16::MAX),
            (Some(""), u16::MAX),
            (None, u16::MAX),
        ] {
            assert_eq!(of_list(query), cost, "{query:?}");
        }
    }
}
