# Read by the runner of curl's tests: of a message that a proxy has forwarded it compares all but what is every hop's own affair, which are
# the version, the fields of the connection, the order of different fields, and how lines end.
use strict;
use warnings;
no warnings 'redefine';

sub name_of {
    my ($name) = $_[0] =~ /^([^:]*)/;
    return lc($name);
}

sub of_any_hop {
    my ($text) = @_;
    my (@out, @fields, $in_head);
    for my $line (split(/(?<=\n)/, $text)) {
        if(!$in_head) {
            # A request may follow a body without a line break between them.
            if($line =~ /^HTTP\/\d|[A-Z]{3,} \S.* HTTP\/\d/) {
                $in_head = 1;
                $line =~ s/HTTP\/1\.[01]/HTTP\/1.1/;
                $line =~ s/\r\n$/\n/;
            }
            push @out, $line;
            next;
        }
        $line =~ s/\r\n$/\n/;
        if($line eq "\n") {
            push @out, (sort { name_of($a) cmp name_of($b) } @fields), $line;
            @fields = ();
            $in_head = 0;
        }
        elsif($line !~ /^(Connection|Proxy-Connection|Keep-Alive|Transfer-Encoding)\s*:/i) {
            push @fields, $line;
        }
    }
    return join("", @out, @fields);
}

sub compareparts {
    my ($first, $second) = @_;
    return of_any_hop(join("", @$first)) ne of_any_hop(join("", @$second));
}

1;
