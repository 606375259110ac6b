//! The addresses the egress listener may connect to, and those it never does.
//!
//! Each address of a name is checked by itself, after the lookup, and exactly that address is
//! connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::upstream::ForbiddenAddress as Forbidden;

/// Refuses forbidden addresses, such as loopback and metadata services.
pub fn judge(address: IpAddr) -> Result<(), Forbidden> {
    match address.to_canonical() {
        IpAddr::V4(address) => judge_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(address) => judge_v4(address),
            None => judge_v6(address),
        },
    }
}

/// Refuses forbidden addresses, such as loopback, but allows metadata services.
pub(super) fn judge_but_metadata(address: IpAddr) -> Result<(), Forbidden> {
    judge(address).or_else(|why| if why == Forbidden::Metadata { Ok(()) } else { Err(why) })
}

fn judge_v4(address: Ipv4Addr) -> Result<(), Forbidden> {
    let [first, second, third, _] = address.octets();
    if address.is_loopback() {
        return Err(Forbidden::Loopback);
    }
    if address.is_link_local() || address == AZURE_WIRE_SERVER || address == ALIBABA_METADATA {
        return Err(Forbidden::Metadata);
    }
    let is_special = first == 0
        || first >= 240
        || address.is_multicast()
        || address.is_documentation()
        || (first, second, third) == (192, 0, 0) // IETF's own
        || (first == 198 && second & 0xfe == 18); // benchmarks
    if is_special { Err(Forbidden::Special) } else { Ok(()) }
}

fn judge_v6(address: Ipv6Addr) -> Result<(), Forbidden> {
    let [first, second, third, ..] = address.segments();
    if address.is_loopback() || address.is_unspecified() {
        return Err(Forbidden::Loopback);
    }
    if first & 0xffc0 == 0xfe80 || (first, second) == (0xfd00, 0x0ec2) || METADATA.contains(&address) {
        return Err(Forbidden::Metadata);
    }
    let is_documentation = (first, second) == (0x2001, 0x0db8) || (first == 0x3fff && second < 0x1000);
    let is_old = first & 0xffc0 == 0xfec0; // site-local, which routers may still take for fe80
    let is_nat64_of_this_net = (first, second, third) == (0x0064, 0xff9b, 1);
    if address.is_multicast() || is_documentation || is_old || is_nat64_of_this_net {
        return Err(Forbidden::Special);
    }
    Ok(())
}

/// Returns the IPv4 address contained in an IPv6 address: mapped, compatible, translated (RFC
/// 2765), NAT64 or 6to4.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = address.octets();
    let at = |from: usize| -> Option<Ipv4Addr> { Some(<[u8; 4]>::try_from(octets.get(from..from + 4)?).ok()?.into()) };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) != (0, 0) && (high, low) != (0, 1) => at(12),
        [0, 0, 0, 0, 0xffff, 0, ..] | [0x0064, 0xff9b, 0, 0, 0, 0, ..] => at(12),
        [0x2002, ..] => at(2),
        _ => None,
    }
}

/// The address on Azure that gives certificates and tokens to every machine.
const AZURE_WIRE_SERVER: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);
/// Alibaba's metadata service. The shared address space around it is allowed.
const ALIBABA_METADATA: Ipv4Addr = Ipv4Addr::new(100, 100, 100, 200);
/// The metadata services of other clouds inside the private addresses, which are otherwise allowed:
/// Google's, Oracle's, Scaleway's, Akamai's and Alibaba's.
const METADATA: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(text: &str) -> Result<(), Forbidden> {
        judge(text.parse().expect("an address"))
    }

    #[test]
    fn addresses_are_judged_by_what_they_lead_to() {
        for text in [
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "::ffff:0:7f00:1",
        ] {
            assert_eq!(verdict(text), Err(Forbidden::Loopback), "{text}");
        }
        for text in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "168.63.129.16",
            "100.100.100.200",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "::a9fe:a9fe",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "fd00:a9fe:a9fe::1",
            "fd00:100::100:200",
            "::ffff:0:169.254.169.254",
        ] {
            assert_eq!(verdict(text), Err(Forbidden::Metadata), "{text}");
            assert!(judge_but_metadata(text.parse().expect("an address")).is_ok(), "{text}");
        }
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.9",
            "ff02::1",
            "2001:db8::1",
            "::ffff:0.0.0.0",
        ] {
            assert_eq!(verdict(text), Err(Forbidden::Special), "{text}");
        }
        for text in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "fc00::1",
            "fd00::1",
            "fd20:ce::253",
            "fd00:c1::a9fe:a9fd",
            "fd00:a9fe:a9fe::2",
            "8.8.8.8",
            "2a00::1",
            "::ffff:8.8.8.8",
        ] {
            assert_eq!(verdict(text), Ok(()), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn every_form_of_an_ipv4_address_is_judged_as_that_address(bits in any::<u32>()) {
            let address = Ipv4Addr::from_bits(bits);
            let [a, b, c, d] = address.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let expected = judge(address.into());
            for form in [
                address.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
                Ipv6Addr::new(0x0064, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            ] {
                prop_assert_eq!(judge(form.into()), expected, "{}", form);
            }
        }
    }
}
