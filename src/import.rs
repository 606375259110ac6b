//! Reads limits that other programs take, and writes them as classes of a gate.
//!
//! `--aws-api-throttle` is the flag of the AWS load balancer controller, the App Mesh controller
//! and others: `Service:regex=rate:burst`, with commas between. Source: `pkg/aws/throttle` of
//! kubernetes-sigs/aws-load-balancer-controller. There a call waits for every entry of its service
//! whose expression is found in its operation. A gate's call is of one class; an entry that has all
//! the calls of another becomes the class that the other is `within`.

mod entry;
mod globs;

use self::entry::EntryError;
use self::entry::{Entry, entries};
use self::globs::{are_within, overlap};

/// A value of the flag as classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Imported {
    /// The classes as TOML.
    pub(crate) toml: String,
    /// The rules that could not be said as a class, each in a line.
    pub(crate) notes: Vec<String>,
}

/// A class to be.
#[derive(Debug)]
struct Class<'a> {
    name: String,
    entry: &'a Entry<'a>,
    globs: &'a [String],
}

/// Reads a value of `--aws-api-throttle`, and writes the classes for the gate `gate`.
///
/// # Errors
/// Every entry that the controllers would not take either, or that limits nothing.
pub(crate) fn aws_api_throttle(value: &str, gate: &str) -> Result<Imported, Vec<EntryError>> {
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    for entry in self::entries(value) {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(error) => wrong.push(error),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let classes = classes(&entries);
    let mut toml = format!(
        "# Made from --aws-api-throttle, for the gate {gate:?}, which needs preset = \"aws\" or dialect = \"aws\".\n"
    );
    let mut notes = Vec::new();
    for (entry, why) in entries.iter().filter_map(|entry| Some((entry, entry.globs.as_ref().err()?))) {
        notes.push(format!("{} is left out: {why}; write `actions` for it by hand", entry.place()));
    }
    for (index, class) in classes.iter().enumerate() {
        let later = &classes[index + 1..];
        let outer = later.iter().find(|outer| outer.holds(class));
        let half = later.iter().filter(|other| other.overlaps(class) && !other.holds(class));
        notes.extend(half.map(|other| {
            let (one, other) = (class.entry.text, other.entry.text);
            format!("calls that match both {one:?} and {other:?} are limited by the first alone")
        }));
        toml += &class.toml(gate, outer);
    }
    for note in &notes {
        toml += &format!("\n# {}\n", note.replace('\n', " "));
    }
    Ok(Imported { toml, notes })
}

/// Returns the entries that are classes, those with fewer calls first: the first class that matches
/// has the call.
fn classes<'a>(entries: &'a [Entry<'a>]) -> Vec<Class<'a>> {
    let mut classes: Vec<Class<'a>> = Vec::new();
    for entry in entries {
        let Ok(globs) = &entry.globs else { continue };
        let service = entry.service.replace('-', "_");
        let number = 1 + classes.iter().filter(|class| class.entry.service == entry.service).count();
        classes.push(Class { name: format!("{service}_{number}"), entry, globs });
    }
    let depth = |class: &Class<'_>| classes.iter().filter(|other| other.holds(class)).count();
    let mut order: Vec<usize> = (0..classes.len()).collect();
    let depths: Vec<usize> = classes.iter().map(depth).collect();
    order.sort_by_key(|index| std::cmp::Reverse(depths.get(*index).copied()));
    let mut classes: Vec<Option<Class<'a>>> = classes.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| classes.get_mut(index)?.take()).collect()
}

// === impl Class ===

impl Class<'_> {
    /// True if all calls of `other` are this class's too.
    fn holds(&self, other: &Class<'_>) -> bool {
        self.name != other.name && self.entry.service == other.entry.service && are_within(other.globs, self.globs)
    }

    fn overlaps(&self, other: &Class<'_>) -> bool {
        self.entry.service == other.entry.service && overlap(self.globs, other.globs)
    }

    fn toml(&self, gate: &str, outer: Option<&Class<'_>>) -> String {
        let Entry { service, rate, burst, text, .. } = self.entry;
        let quoted: Vec<String> = self.globs.iter().map(|glob| format!("{glob:?}")).collect();
        let actions = match self.globs {
            [all] if all == "*" => String::new(),
            _ => format!(", actions = [{}]", quoted.join(", ")),
        };
        let within = outer.map_or_else(String::new, |outer| format!("within = {:?}\n", outer.name));
        format!(
            "\n# {text}\n[[gates.{gate}.classes]]\nname = {:?}\nmatch = {{ services = [{service:?}]{actions} }}\n\
             bucket = {{ rate = {rate:?}, burst = {burst}, per = \"account\" }}\n{within}own_bucket_only = true\n",
            self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(value: &str) -> String {
        aws_api_throttle(value, "aws").unwrap_or_else(|wrong| panic!("{wrong:?}")).toml
    }

    #[test]
    fn the_controllers_own_defaults_become_classes() {
        let defaults = "Elastic Load Balancing v2:^RegisterTargets|^DeregisterTargets=4:20,Elastic Load Balancing v2:.*=10:40,\
                        WAFV2:^AssociateWebACL|DisassociateWebACL=0.5:1,WAFV2:^GetWebACLForResource|ListResourcesForWebACL=1:1";
        let text = toml(defaults);
        let expected =
            "# Made from --aws-api-throttle, for the gate \"aws\", which needs preset = \"aws\" or dialect = \"aws\".

# Elastic Load Balancing v2:^RegisterTargets|^DeregisterTargets=4:20
[[gates.aws.classes]]
name = \"elasticloadbalancing_1\"
match = { services = [\"elasticloadbalancing\"], actions = [\"RegisterTargets*\", \"DeregisterTargets*\"] }
bucket = { rate = 4.0, burst = 20, per = \"account\" }
within = \"elasticloadbalancing_2\"
own_bucket_only = true

# Elastic Load Balancing v2:.*=10:40
[[gates.aws.classes]]
name = \"elasticloadbalancing_2\"
match = { services = [\"elasticloadbalancing\"] }
bucket = { rate = 10.0, burst = 40, per = \"account\" }
own_bucket_only = true

# WAFV2:^AssociateWebACL|DisassociateWebACL=0.5:1
[[gates.aws.classes]]
name = \"wafv2_1\"
match = { services = [\"wafv2\"], actions = [\"AssociateWebACL*\", \"*DisassociateWebACL*\"] }
bucket = { rate = 0.5, burst = 1, per = \"account\" }
own_bucket_only = true

# WAFV2:^GetWebACLForResource|ListResourcesForWebACL=1:1
[[gates.aws.classes]]
name = \"wafv2_2\"
match = { services = [\"wafv2\"], actions = [\"GetWebACLForResource*\", \"*ListResourcesForWebACL*\"] }
bucket = { rate = 1.0, burst = 1, per = \"account\" }
own_bucket_only = true
";
        assert_eq!(text, expected);
        for gate in ["preset = \"aws\"", "kind = \"http\"\ndialect = \"aws\""] {
            let config = format!("[gates.aws]\nupstream = \"https://x\"\n{gate}\n{text}");
            let loaded = crate::config::load_text("f.toml".to_owned(), config, &[]);
            loaded.unwrap_or_else(|problems| panic!("{problems:?}"));
        }
    }

    #[test]
    fn the_narrower_entry_comes_first_and_is_within_the_wider() {
        let text = toml("EC2:.*=20:40,EC2:Describe=10:20,EC2:^DescribeInstances$=1:2");
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("name = ")).collect();
        assert_eq!(names, ["\"ec2_3\"", "\"ec2_2\"", "\"ec2_1\""]);
        let within: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("within = ")).collect();
        assert_eq!(within, ["\"ec2_2\"", "\"ec2_1\""]);
    }

    #[test]
    fn what_has_no_form_is_said_where_it_is_missing() {
        let imported = aws_api_throttle("EC2:[A-M].*=1:1,EC2:Describe.*=2:2,EC2:.*Vpcs=3:3", "aws").unwrap();
        let notes = [
            "entry 1, \"EC2:[A-M].*=1:1\", is left out: [A-M] at place 1 of its expression has no form as a pattern with *; \
             write `actions` for it by hand",
            "calls that match both \"EC2:Describe.*=2:2\" and \"EC2:.*Vpcs=3:3\" are limited by the first alone",
        ];
        assert_eq!(imported.notes, notes);
        for note in notes {
            assert!(imported.toml.lines().any(|line| line == format!("# {note}")), "{}", imported.toml);
        }
        assert!(imported.toml.parse::<toml::Table>().is_ok());
    }
}
