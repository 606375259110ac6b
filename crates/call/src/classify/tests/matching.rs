//! Random requests: the first rule that matches, and no benefit of the doubt.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn every_request_gets_a_class(path in "(/[a-z%.;é]{0,6}){0,8}", kubernetes in any::<bool>()) {
        if let Ok(uri) = path.parse::<Uri>() {
            let rules = if kubernetes { rules_with(FairBy::UserAgent, ec2()) } else { Rules::single(ApiKind::Http) };
            let classified = rules.classify(&Method::GET, &uri, &HeaderMap::new(), &Salt::random());
            prop_assert!(usize::from(classified.class.0) < rules.classes.len());
            prop_assert_eq!(classified.call.verb == Verb::Watch, false);
            prop_assert!(!classified.key_name(None).is_empty());
        }
    }

    #[test]
    fn the_first_rule_that_matches_gives_the_class(
        // Few are tried one after the other, many are found by what they name.
        matchers in prop_oneof![prop::collection::vec(any_matcher(), 0..6), prop::collection::vec(any_matcher(), 17..40)],
        line in any_line(),
    ) {
        let traits = vec![Traits { exempt: false, remembers: true, strictness: 0, cost: CostBy::Number(1) }; matchers.len() + 1];
        let rules = matchers.iter().zip(0_u16..).map(|(matcher, class)| Rule {
            class: ClassId(class),
            matching: RuleMatch::Patterns(Box::new(matcher.clone())),
        });
        let rules = Rules::new(ApiKind::Kubernetes, FairBy::None, traits, rules.collect());
        let classified = classify(&rules, &line, &Salt::random());
        let (method, uri, headers) = request(&line);
        let obvious = matchers.iter().position(|matcher| obviously_matches(matcher, &classified.call, &method, &uri, &headers));
        prop_assert_eq!(usize::from(classified.class.0), obvious.unwrap_or(matchers.len()), "{} {:?}", line, matchers);
    }

    /// By a provider's words. Each rule alone tells whether it matches.
    #[test]
    fn the_first_of_many_rules_by_a_providers_words_gives_the_class(
        matchers in prop::collection::vec(any_matcher_of_words(), 17..40),
        method in prop::sample::select(vec!["GET", "PUT"]),
        account in prop::sample::select(vec!["0a", "0b", "0c"]),
        kind in prop::sample::select(vec!["Microsoft.Compute/virtualMachines", "Microsoft.Network/virtualNetworks"]),
        speaks in any::<bool>(),
    ) {
        let dialect = if speaks { Dialect::Azure } else { Dialect::Plain };
        let found_by = |matchers: &[Matcher]| {
            let traits = Traits { exempt: false, remembers: true, strictness: 0, cost: CostBy::Number(1) };
            let rules = matchers.iter().zip(0_u16..).map(|(matcher, class)| Rule {
                class: ClassId(class),
                matching: RuleMatch::Patterns(Box::new(matcher.clone())),
            });
            let rules = Rules::new(ApiKind::Http, FairBy::None, vec![traits; matchers.len() + 1], rules.collect());
            let line = format!("{method} /subscriptions/{account}/resourceGroups/rg/providers/{kind}/x");
            usize::from(classify(&rules.with_dialect(dialect), &line, &Salt::random()).class.0)
        };
        let first = matchers.iter().position(|matcher| found_by(std::slice::from_ref(matcher)) == 0);
        prop_assert_eq!(found_by(&matchers), first.unwrap_or(matchers.len()), "{:?}", matchers);
    }

    #[test]
    fn an_ambiguous_path_is_never_treated_laxer_than_any_class_allows(
        classes in prop::collection::vec((any::<bool>(), 0_u16..5), 1..6),
        rules in prop::collection::vec((0_u16..6, any_matcher()), 0..6),
        dots in prop::sample::select(vec!["..", ".", "%2e%2e", "%2f", "", "a;b", "%5c", "%ff"]),
    ) {
        let traits: Vec<Traits> =
            classes.iter().map(|(exempt, strictness)| Traits { exempt: *exempt, remembers: true, strictness: *strictness, cost: CostBy::Number(1) }).collect();
        let rules = rules.into_iter().filter(|(class, _)| usize::from(*class) < traits.len());
        let rules = rules.map(|(class, matcher)| Rule { class: ClassId(class), matching: RuleMatch::Patterns(Box::new(matcher)) });
        let rules = Rules::new(ApiKind::Kubernetes, FairBy::None, traits.clone(), rules.collect());
        let classified = classify(&rules, &format!("GET /api/v1/{dots}/pods"), &Salt::random());
        prop_assert!(classified.call.is_ambiguous, "{}", dots);
        let class = traits[usize::from(classified.class.0)];
        if let Some(strictest) = traits.iter().filter(|traits| !traits.exempt).map(|traits| traits.strictness).max() {
            prop_assert!(!class.exempt);
            prop_assert_eq!(class.strictness, strictest);
        }
    }

    #[test]
    fn an_external_path_is_never_treated_laxer_than_in_any_reading_of_it(
        classes in prop::collection::vec((any::<bool>(), 0_u16..5), 2..6),
        rules in prop::collection::vec((0_u16..6, any_external_matcher()), 0..6),
        method in prop::sample::select(vec!["GET", "POST", "PUT"]),
        segments in prop::collection::vec(prop::sample::select(vec!["a", "b", "xy", ".."]), 1..4),
        between in prop::collection::vec(prop::sample::select(vec!["/", "%2F", "%2f", "//"]), 3),
        other in "(/(a|b|xy)){1,3}",
    ) {
        let traits: Vec<Traits> =
            classes.iter().map(|(exempt, strictness)| Traits { exempt: *exempt, remembers: true, strictness: *strictness, cost: CostBy::Number(1) }).collect();
        let rules = rules.into_iter().filter(|(class, _)| usize::from(*class) < traits.len());
        let rules = rules.map(|(class, matcher)| Rule { class: ClassId(class), matching: RuleMatch::Patterns(Box::new(matcher)) });
        let rules = Rules::new(ApiKind::Http, FairBy::None, traits.clone(), rules.collect());
        let rank = |path: &str| {
            let class = classify(&rules, &format!("{method} {path}"), &Salt::random()).class;
            let traits = traits[usize::from(class.0)];
            (!traits.exempt, if traits.exempt { 0 } else { traits.strictness })
        };
        let path: String = segments.iter().zip(&between).map(|(segment, between)| format!("{between}{segment}")).collect();
        let path = format!("/a{path}");
        let ambiguous = classify(&rules, &format!("{method} {path}"), &Salt::random()).call.is_ambiguous;
        let decoded_first = path.replace("%2F", "/").replace("%2f", "/");
        prop_assert_eq!(ambiguous, decoded_first.contains("//") || decoded_first.contains(".."), "{}", path);
        // Whichever of the two it is for the upstream; and any path at all, where that is not
        // known.
        let split_first = path.replace("%2F", "_").replace("%2f", "_");
        prop_assert!(rank(&path) >= rank(&decoded_first), "{}", path);
        if ambiguous {
            prop_assert!(rank(&path) >= rank(&other), "{} {}", path, other);
        } else {
            prop_assert!(rank(&path) >= rank(&split_first), "{}", path);
        }
    }
}

fn any_external_matcher() -> impl Strategy<Value = Matcher> {
    let list = |words: Vec<&'static str>| {
        let some = prop::sample::subsequence(words, 1..=2);
        prop_oneof![1 => Just(Vec::new()), 2 => some]
            .prop_map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    (list(vec!["GET", "POST", "P*"]), list(vec!["/a/*", "/a/b", "/*/b", "*xy", "/a*/a"])).prop_map(
        |(methods, paths)| Matcher::default().with(PatternList::Methods, methods).with(PatternList::Paths, paths),
    )
}

fn any_matcher_of_words() -> impl Strategy<Value = Matcher> {
    let list = |words: Vec<&'static str>| {
        let some = prop::sample::subsequence(words, 1..=2);
        prop_oneof![2 => Just(Vec::new()), 1 => some]
            .prop_map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    (
        list(vec!["microsoft.compute", "microsoft.network", "microsoft.*", ""]),
        list(vec!["0a", "0b", "0*", ""]),
        list(vec!["reads/virtualmachines", "writes/virtualmachines", "writes/*", "reads/virtualnetworks"]),
        list(vec![
            "/subscriptions/*",
            "*/x",
            "/subscriptions/0a/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/x",
        ]),
    )
        .prop_map(|(services, accounts, actions, paths)| {
            Matcher::default()
                .with(PatternList::Services, services)
                .with(PatternList::Accounts, accounts)
                .with(PatternList::Actions, actions)
                .with(PatternList::Paths, paths)
        })
}

/// A few patterns over a few words, so that rules overlap.
fn any_matcher() -> impl Strategy<Value = Matcher> {
    let list = |words: Vec<&'static str>| {
        let some = prop::sample::subsequence(words, 1..=2);
        prop_oneof![3 => Just(Vec::new()), 1 => some]
            .prop_map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let who = (
        list(vec!["get", "list", "create", "*e*"]),
        list(vec!["", "apps", "*"]),
        list(vec!["pods", "deploy*", "*s"]),
        list(vec!["a", "b", "", "*"]),
        list(vec!["x", "*y", ""]),
        list(vec!["status", "", "s*"]),
    );
    let how = (
        list(vec!["GET", "POST", "P*"]),
        list(vec!["/api/*", "*/a/*", "/apis/apps/v1/deployments"]),
        list(vec!["kubectl*", "*"]),
        list(vec!["1", "*2"]),
        list(vec!["1", "*2"]),
    );
    (who, how).prop_map(|(who, (methods, paths, user_agents, header, query))| {
        Matcher {
            headers: header.into_iter().map(|pattern| ("x-h".parse().unwrap(), pattern)).collect(),
            query: query.into_iter().map(|pattern| ("q".to_owned(), pattern)).collect(),
            ..Matcher::default()
        }
        .with(PatternList::Verbs, who.0)
        .with(PatternList::Groups, who.1)
        .with(PatternList::Resources, who.2)
        .with(PatternList::Namespaces, who.3)
        .with(PatternList::Names, who.4)
        .with(PatternList::Subresources, who.5)
        .with(PatternList::Methods, methods)
        .with(PatternList::Paths, paths)
        .with(PatternList::UserAgents, user_agents)
    })
}

fn any_line() -> impl Strategy<Value = String> {
    let method = prop::sample::select(vec!["GET", "POST", "PUT", "HEAD"]);
    let api = prop::sample::select(vec!["/api/v1", "/apis/apps/v1"]);
    let namespace = prop::sample::select(vec!["", "/namespaces/a", "/namespaces/b"]);
    let object = prop::sample::select(vec!["/pods", "/pods/x", "/deployments", "/deployments/xy/status"]);
    let rest =
        prop::sample::select(vec!["", "?q=1", "?q=12&q=1", " x-h:1", "?q=2 x-h:12", " user-agent:kubectl/v1 x-h:2"]);
    (method, api, namespace, object, rest).prop_map(|(m, a, n, o, r)| format!("{m} {a}{n}{o}{r}"))
}

fn obviously_matches(matcher: &Matcher, call: &Call, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    /// The obvious glob, exponential.
    fn glob(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
            Some((byte, rest)) => text.first() == Some(byte) && glob(rest, &text[1..]),
        }
    }
    let fits = |pattern: &String, text: &str| glob(pattern.as_bytes(), text.as_bytes());
    let one = |list: &[String], text: &str| list.is_empty() || list.iter().any(|pattern| fits(pattern, text));
    let header =
        |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>();
    let query = |name: &str| {
        let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(found, _)| *found == name).map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
    };
    let agents = matcher.get(PatternList::UserAgents);
    one(matcher.get(PatternList::Verbs), call.verb.word())
        && one(matcher.get(PatternList::Groups), call.group())
        && one(matcher.get(PatternList::Resources), call.resource())
        && one(matcher.get(PatternList::Namespaces), call.namespace())
        && one(matcher.get(PatternList::Names), call.name())
        && one(matcher.get(PatternList::Subresources), call.subresource())
        && one(matcher.get(PatternList::Methods), method.as_str())
        && one(matcher.get(PatternList::Paths), uri.path())
        && (agents.is_empty() || header("user-agent").iter().any(|agent| one(agents, agent)))
        && matcher.headers.iter().all(|(name, pattern)| header(name.as_str()).iter().any(|value| fits(pattern, value)))
        && matcher.query.iter().all(|(name, pattern)| query(name).iter().any(|value| fits(pattern, value)))
}
