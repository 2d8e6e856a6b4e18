package main

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/parquet-go/parquet-go"
)

// ordered is a group whose columns keep their order; parquet-go sorts them by name.
type ordered struct {
	parquet.Group
	names []string
}

func (g ordered) Fields() []parquet.Field {
	byName := map[string]parquet.Field{}
	for _, field := range g.Group.Fields() {
		byName[field.Name()] = field
	}
	fields := make([]parquet.Field, len(g.names))
	for i, name := range g.names {
		fields[i] = byName[name]
	}
	return fields
}

func groupOf(fields []arrow.Field, options options) (parquet.Node, error) {
	group := ordered{Group: parquet.Group{}}
	for _, field := range fields {
		node, err := nodeOf(field, options)
		if err != nil {
			return nil, err
		}
		group.Group[field.Name] = node
		group.names = append(group.names, field.Name)
	}
	return group, nil
}

func nodeOf(field arrow.Field, options options) (parquet.Node, error) {
	node, err := typeOf(field.Type, options)
	if err != nil {
		return nil, err
	}
	if field.Nullable {
		return parquet.Optional(node), nil
	}
	return parquet.Required(node), nil
}

// typeOf is the node of a type that a Delta table has.
func typeOf(type_ arrow.DataType, options options) (parquet.Node, error) {
	switch type_ := type_.(type) {
	case *arrow.StructType:
		return groupOf(type_.Fields(), options)
	case *arrow.ListType:
		element, err := nodeOf(type_.ElemField(), options)
		if err != nil {
			return nil, err
		}
		return parquet.List(element), nil
	case *arrow.MapType:
		key, err := typeOf(type_.KeyType(), options)
		if err != nil {
			return nil, err
		}
		value, err := nodeOf(type_.ItemField(), options)
		if err != nil {
			return nil, err
		}
		return parquet.Map(parquet.Required(key), value), nil
	}
	leaf, err := leafOf(type_, options)
	if err != nil {
		return nil, err
	}
	if encoding := options.encodingOf(leaf.Type().Kind()); encoding != nil {
		leaf = parquet.Encoded(leaf, encoding)
	}
	return leaf, nil
}

func leafOf(type_ arrow.DataType, options options) (parquet.Node, error) {
	switch type_ := type_.(type) {
	case *arrow.BooleanType:
		return parquet.Leaf(parquet.BooleanType), nil
	case *arrow.Int8Type:
		return parquet.Int(8), nil
	case *arrow.Int16Type:
		return parquet.Int(16), nil
	case *arrow.Int32Type:
		return parquet.Int(32), nil
	case *arrow.Int64Type:
		return parquet.Int(64), nil
	case *arrow.Float32Type:
		return parquet.Leaf(parquet.FloatType), nil
	case *arrow.Float64Type:
		return parquet.Leaf(parquet.DoubleType), nil
	case *arrow.StringType:
		return parquet.String(), nil
	case *arrow.BinaryType:
		return parquet.Leaf(parquet.ByteArrayType), nil
	case *arrow.Date32Type:
		return parquet.Date(), nil
	case *arrow.Decimal128Type:
		return decimalOf(int(type_.Scale), int(type_.Precision)), nil
	case *arrow.TimestampType:
		return timeOf(type_, options)
	}
	return nil, fmt.Errorf("no column of Parquet for %s", type_)
}

func decimalOf(scale, precision int) parquet.Node {
	switch {
	case precision <= 9:
		return parquet.Decimal(scale, precision, parquet.Int32Type)
	case precision <= 18:
		return parquet.Decimal(scale, precision, parquet.Int64Type)
	}
	return parquet.Decimal(scale, precision, parquet.FixedLenByteArrayType(decimalBytes))
}

func timeOf(type_ *arrow.TimestampType, options options) (parquet.Node, error) {
	if options.INT96 {
		return parquet.Leaf(parquet.Int96Type), nil
	}
	adjusted := type_.TimeZone != ""
	switch type_.Unit {
	case arrow.Millisecond:
		return parquet.TimestampAdjusted(parquet.Millisecond, adjusted), nil
	case arrow.Microsecond:
		return parquet.TimestampAdjusted(parquet.Microsecond, adjusted), nil
	case arrow.Nanosecond:
		return parquet.TimestampAdjusted(parquet.Nanosecond, adjusted), nil
	}
	return nil, fmt.Errorf("no column of Parquet for %s", type_)
}
