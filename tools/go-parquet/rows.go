package main

import (
	"fmt"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
)

// Bytes of a decimal that no integer holds.
const decimalBytes = 16

const (
	daysUntil1970 = 2_440_588 // Julian
	microsPerDay  = 86_400_000_000
)

// rows cuts Arrow's columns into Parquet's rows: values with levels, by leaf.
type rows struct {
	int96  bool
	leaves []parquet.Row
	err    error
}

// row is row i of a batch.
func (r *rows) row(batch arrow.RecordBatch, i int) (parquet.Row, error) {
	for leaf := range r.leaves {
		r.leaves[leaf] = r.leaves[leaf][:0]
	}
	leaf := 0
	for n, field := range batch.Schema().Fields() {
		leaf = r.add(leaf, field, batch.Column(n), i, levels{})
	}
	var row parquet.Row
	for _, values := range r.leaves {
		row = append(row, values...)
	}
	return row, r.err
}

// levels of a value; depth is the number of lists and maps around it.
type levels struct{ repetition, definition, depth int }

func (l levels) defined() levels {
	l.definition++
	return l
}

// entry is the level of entry n of a list or map that lies at this level.
func (l levels) entry(n int) levels {
	l.depth++
	l.definition++
	if n > 0 {
		l.repetition = l.depth
	}
	return l
}

// add adds entry i of an array to the leaves from leaf on. Returns the first leaf after it.
func (r *rows) add(leaf int, field arrow.Field, values arrow.Array, i int, at levels) int {
	if field.Nullable {
		if values.IsNull(i) {
			return r.null(leaf, field.Type, at)
		}
		at = at.defined()
	}
	switch values := values.(type) {
	case *array.Struct:
		for n, child := range field.Type.(*arrow.StructType).Fields() {
			leaf = r.add(leaf, child, values.Field(n), i, at)
		}
		return leaf
	case *array.Map:
		type_ := field.Type.(*arrow.MapType)
		key := arrow.Field{Type: type_.KeyType()}
		start, end := values.ValueOffsets(i)
		if start == end {
			return r.null(leaf, field.Type, at)
		}
		next := leaf
		for n := start; n < end; n++ {
			entry := at.entry(int(n - start))
			next = r.add(leaf, key, values.Keys(), int(n), entry)
			next = r.add(next, type_.ItemField(), values.Items(), int(n), entry)
		}
		return next
	case *array.List:
		element := field.Type.(*arrow.ListType).ElemField()
		start, end := values.ValueOffsets(i)
		if start == end {
			return r.null(leaf, field.Type, at)
		}
		next := leaf
		for n := start; n < end; n++ {
			next = r.add(leaf, element, values.ListValues(), int(n), at.entry(int(n-start)))
		}
		return next
	}
	value, err := r.value(values, i)
	if err != nil {
		r.err = err
	}
	r.put(leaf, value, at)
	return leaf + 1
}

// null adds one null, which lies at this level, to each leaf of a type.
func (r *rows) null(leaf int, type_ arrow.DataType, at levels) int {
	nested, ok := type_.(arrow.NestedType)
	if !ok {
		r.put(leaf, parquet.NullValue(), at)
		return leaf + 1
	}
	for _, field := range nested.Fields() {
		leaf = r.null(leaf, field.Type, at)
	}
	return leaf
}

func (r *rows) put(leaf int, value parquet.Value, at levels) {
	r.leaves[leaf] = append(r.leaves[leaf], value.Level(at.repetition, at.definition, leaf))
}

func (r *rows) value(values arrow.Array, i int) (parquet.Value, error) {
	switch values := values.(type) {
	case *array.Boolean:
		return parquet.BooleanValue(values.Value(i)), nil
	case *array.Int8:
		return parquet.Int32Value(int32(values.Value(i))), nil
	case *array.Int16:
		return parquet.Int32Value(int32(values.Value(i))), nil
	case *array.Int32:
		return parquet.Int32Value(values.Value(i)), nil
	case *array.Int64:
		return parquet.Int64Value(values.Value(i)), nil
	case *array.Float32:
		return parquet.FloatValue(values.Value(i)), nil
	case *array.Float64:
		return parquet.DoubleValue(values.Value(i)), nil
	case *array.String:
		return parquet.ByteArrayValue([]byte(values.Value(i))), nil
	case *array.Binary:
		return parquet.ByteArrayValue(values.Value(i)), nil
	case *array.Date32:
		return parquet.Int32Value(int32(values.Value(i))), nil
	case *array.Timestamp:
		return r.time(values, i), nil
	case *array.Decimal128:
		return decimal(values, i), nil
	}
	return parquet.Value{}, fmt.Errorf("no value of Parquet for %s", values.DataType())
}

// time is a number since 1970, or as INT96 (of microseconds) nanoseconds of a Julian day.
func (r *rows) time(values *array.Timestamp, i int) parquet.Value {
	count := int64(values.Value(i))
	if !r.int96 {
		return parquet.Int64Value(count)
	}
	day := count / microsPerDay
	if count%microsPerDay < 0 {
		day--
	}
	nanos := uint64(count-day*microsPerDay) * 1000
	return parquet.Int96Value(
		deprecated.Int96{uint32(nanos), uint32(nanos >> 32), uint32(day + daysUntil1970)})
}

func decimal(values *array.Decimal128, i int) parquet.Value {
	number := values.Value(i).BigInt()
	switch precision := values.DataType().(*arrow.Decimal128Type).Precision; {
	case precision <= 9:
		return parquet.Int32Value(int32(number.Int64()))
	case precision <= 18:
		return parquet.Int64Value(number.Int64())
	}
	if number.Sign() < 0 { // the two's complement
		number = new(big.Int).Add(number, new(big.Int).Lsh(big.NewInt(1), 8*decimalBytes))
	}
	return parquet.FixedLenByteArrayValue(number.FillBytes(make([]byte, decimalBytes)))
}
