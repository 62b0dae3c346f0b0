# SPDX-License-Identifier: Apache-2.0
"""The functions that Kubernetes adds: quantities, versions, addresses, lists, sets, strings, formats, URLs."""

import pytest

from tests.kubecel.cel_devices import holds

TRUE = r"""
quantity("1Gi") == quantity("1024Mi") && quantity("1.5") == quantity("1500m") && quantity("1e3") == quantity("1k")
quantity("0.1").add(quantity("0.2")).compareTo(quantity("0.3")) == 0
quantity("50k").sub(20000).isLessThan(quantity("30001")) && quantity("1").add(quantity("1")).asInteger() == 2
sign(quantity("-1Gi")) == -1 && sign(quantity("0")) == 0
quantity("50M").isInteger() && quantity("50M").asInteger() == 50000000 && !quantity("1.5").isInteger()
!quantity("1.0").isInteger() && !quantity("1000m").isInteger()
quantity("1.5Ki").asApproximateFloat() == 1536.0
quantity("20Ei") == quantity("9223372036854775807")
isQuantity("1.3Gi") && isQuantity("-1") && !isQuantity("200K") && !isQuantity("Three") && !isQuantity("")
isSemver("1.0.0") && isSemver("0.1.0-alpha.1+build") && !isSemver("v1.0.0") && !isSemver("1.0") && !isSemver("01.0.0")
isSemver("v1.0", true) && isSemver("01.01.01", true) && !isSemver("1.0-rc", true)
semver("v1.0", true) == semver("1.0.0") && semver("01.02.03", true).minor() == 2
semver("1.0.0-alpha").isLessThan(semver("1.0.0")) && semver("1.0.0-2").isLessThan(semver("1.0.0-10"))
semver("1.0.0-1").isLessThan(semver("1.0.0-a")) && semver("1.0.0-a").isLessThan(semver("1.0.0-a.1"))
semver("1.2.3").compareTo(semver("1.2.3+x")) == 0 && semver("2.0.0").isGreaterThan(semver("1.99.99"))
ip("10.0.0.1").family() == 4 && ip("::1").family() == 6
ip("::1").isLoopback() && string(ip("2001:DB8::1")) == "2001:db8::1"
isIP("10.0.0.1") && !isIP("10.0.0.256") && !isIP("::ffff:1.2.3.4") && !isIP("fe80::1%eth0") && !isIP("010.0.0.1")
ip.isCanonical("2001:db8::1") && !ip.isCanonical("2001:DB8::1")
ip("224.0.0.1").isLinkLocalMulticast() && ip("169.254.1.1").isLinkLocalUnicast() && ip("0.0.0.0").isUnspecified()
ip("192.168.0.1").isGlobalUnicast() && !ip("255.255.255.255").isGlobalUnicast() && !ip("ff00::1").isGlobalUnicast()
cidr("10.0.0.0/8").containsIP("10.1.2.3") && !cidr("10.0.0.0/8").containsIP(ip("11.0.0.1"))
cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16") && !cidr("10.1.0.0/16").containsCIDR(cidr("10.0.0.0/8"))
cidr("10.1.2.3/16").masked() == cidr("10.1.0.0/16")
cidr("::/32").prefixLength() == 32 && cidr("10.1.2.3/8").ip() == ip("10.1.2.3")
isCIDR("10.0.0.0/8") && !isCIDR("10.0.0.0") && !isCIDR("10.0.0.0/33")
[1, 2, 3].sum() == 6 && [1.5, 2.0].sum() == 3.5
[duration("1s"), duration("2s")].sum() == duration("3s") && [].sum() == 0
[3, 1, 2].min() == 1 && ["a", "c", "b"].max() == "c" && [1, 2, 2].isSorted() && !["b", "a"].isSorted()
[1, 2, 2].indexOf(2) == 1 && [1, 2, 2].lastIndexOf(2) == 2 && [1].indexOf(5) == -1
[1, 2, 3].includes(2) && !"abc".includes("a") && "abc".includes("abc")
[3, 1, 2].sort() == [1, 2, 3] && ["bb", "a"].sortBy(s, s.size()) == ["a", "bb"] && [1, 2, 3].reverse() == [3, 2, 1]
[1, 2, 3, 4].slice(1, 3) == [2, 3] && [[[1]], [[2]]].flatten(2) == [1, 2] && [1, 1, 2].distinct() == [1, 2]
lists.range(3) == [0, 1, 2]
sets.contains([1, 2, 3], [2]) && !sets.contains([1], [2])
sets.intersects([1, 2], [2, 3]) && sets.equivalent([1, 1], [1])
"abc".charAt(1) == "b" && "abcb".indexOf("b") == 1 && "abcb".lastIndexOf("b") == 3 && "abcb".indexOf("b", 2) == 3
"aBc".lowerAscii() == "abc" && "aBc".upperAscii() == "ABC" && " a\t".trim() == "a" && "abc".substring(1) == "bc"
"abcd".substring(1, 3) == "bc" && "a-b-c".replace("-", "+") == "a+b+c" && "a-b-c".replace("-", "", 1) == "ab-c"
"a,b,c".split(",") == ["a", "b", "c"] && "a,b,c".split(",", 2) == ["a", "b,c"] && "abc".split("") == ["a", "b", "c"]
["a", "b"].join("-") == "a-b" && ["a", "b"].join() == "ab" && strings.quote("a\"b") == '"a\\"b"'
"ab 12 cd 345".find("[0-9]+") == "12" && "ab 12 cd 345".findAll("[0-9]+") == ["12", "345"] && "abc".find("x") == ""
"ab 12 cd 345".findAll("[0-9]+", 1) == ["12"]
url("https://user@example.com:80/a%20b?k=v&k=w#x").getHost() == "example.com:80"
url("https://example.com:80/a b").getEscapedPath() == "/a%20b" && url("https://[::1]:80/").getHostname() == "::1"
url("https://example.com/?k=a&k=b").getQuery() == {"k": ["a", "b"]} && url("/path").getScheme() == ""
url("/?a%20b=c+d&&a+b=%e2%82%ac&x;y=1&z=%zz&%=1&e").getQuery() == {"a b": ["c d", "€"], "e": [""]}
isURL("https://example.com") && !isURL("../relative") && !isURL("") && url("https://example.com:80").getPort() == "80"
!format.dns1123Label().validate("my-label").hasValue() && format.dns1123Label().validate("My").hasValue()
!format.dns1123Subdomain().validate("a.b-c").hasValue() && !format.dns1123LabelPrefix().validate("a-").hasValue()
!format.qualifiedName().validate("example.com/Name").hasValue() && format.qualifiedName().validate("a/b/c").hasValue()
!format.uuid().validate("123e4567-e89b-12d3-a456-426614174000").hasValue() && format.uuid().validate("x").hasValue()
!format.date().validate("2024-02-29").hasValue() && format.date().validate("2023-02-29").hasValue()
!format.byte().validate("aGVsbG8=").hasValue()
format.named("labelValue").hasValue() && !format.named("x").hasValue()
!format.labelValue().validate("").hasValue() && !format.datetime().validate("2024-01-01T00:00:00Z").hasValue()
"""


@pytest.mark.parametrize("expression", TRUE.strip().splitlines())
def test_it_is_true(expression: str) -> None:
    assert holds(expression)
