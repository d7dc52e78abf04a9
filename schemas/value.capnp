@0xd1f46ad0c2b5a7e9;

# A value of the wire: a tree that describes itself, into which plain C++ values are written.
# runtime/wire/wire.hpp says which value becomes which kind, docs/wire_values.md why.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("troupe::schemas");

enum NumberType {
  i8 @0;
  u8 @1;
  i16 @2;
  u16 @3;
  i32 @4;
  u32 @5;
  i64 @6;
  u64 @7;
  f32 @8;
  f64 @9;
}

struct Value {
  union {
    none @0 :Void;
    flag @1 :Bool;
    integer @2 :Int64;
    # Only for what is unsigned in C++, so that its whole range fits.
    natural @3 :UInt64;
    real @4 :Float64;
    # Any bytes, not only UTF-8.
    text @5 :Text;
    bytes @6 :Data;
    # Numbers of one type side by side, little-endian.
    numbers @7 :Numbers;
    # Elements, key and value of a map in turn, or the parts of a tuple.
    list @8 :List(Value);
    record @9 :List(Field);
    # As the column exchange of the sender wrote it; runtime/exchange/column_exchange.hpp.
    batch @10 :Data;
    column @11 :Data;
  }
}

struct Numbers {
  type @0 :NumberType;
  data @1 :Data;
}

struct Field {
  name @0 :Text;
  value @1 :Value;
}
