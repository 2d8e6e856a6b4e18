package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
)

// check compares page indexes and bloom filters, as far as there are any, with the values of the
// pages that they describe, by parquet-go. Prints how many pages and filters it compared.
func check(path string) error {
	opened, err := os.Open(path)
	if err != nil {
		return err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return err
	}
	file, err := parquet.OpenFile(opened, info.Size())
	if err != nil {
		return err
	}
	pages, filters := 0, 0
	for n, group := range file.RowGroups() {
		for c, chunk := range group.ColumnChunks() {
			checked, err := checkPages(chunk, group.NumRows())
			if err != nil {
				return fmt.Errorf("row group %d, column %d: %w", n, c, err)
			}
			pages += checked
			if chunk.BloomFilter() == nil {
				continue
			}
			if err := checkFilter(chunk); err != nil {
				return fmt.Errorf("row group %d, column %d: %w", n, c, err)
			}
			filters++
		}
	}
	_, err = fmt.Println(pages, filters)
	return err
}

// checkPages seeks each page of an offset index, and compares it with the column index.
func checkPages(chunk parquet.ColumnChunk, groupRows int64) (int, error) {
	offsets, err := chunk.OffsetIndex()
	if errors.Is(err, parquet.ErrMissingOffsetIndex) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	bounds, err := chunk.ColumnIndex()
	if err != nil && !errors.Is(err, parquet.ErrMissingColumnIndex) {
		return 0, err
	}
	pages := chunk.Pages()
	defer pages.Close()
	for n := range offsets.NumPages() {
		first, next := offsets.FirstRowIndex(n), groupRows
		if n+1 < offsets.NumPages() {
			next = offsets.FirstRowIndex(n + 1)
		}
		if err := pages.SeekToRow(first); err != nil {
			return 0, fmt.Errorf("page %d: %w", n, err)
		}
		page, err := pages.ReadPage()
		if err != nil {
			return 0, fmt.Errorf("page %d: %w", n, err)
		}
		if page.NumRows() != next-first {
			return 0, fmt.Errorf("page %d: %d rows, not %d", n, page.NumRows(), next-first)
		}
		values, err := valuesOf(page)
		if err != nil {
			return 0, fmt.Errorf("page %d: %w", n, err)
		}
		if bounds == nil {
			continue
		}
		if err := checkBounds(chunk.Type(), values, bounds, n); err != nil {
			return 0, fmt.Errorf("page %d: %w", n, err)
		}
	}
	return offsets.NumPages(), nil
}

func checkBounds(
	type_ parquet.Type, values []parquet.Value, bounds parquet.ColumnIndex, page int,
) error {
	nulls := int64(0)
	least, greatest := bounds.MinValue(page), bounds.MaxValue(page)
	for _, value := range values {
		if value.IsNull() {
			nulls++
			continue
		}
		if bounds.NullPage(page) {
			return fmt.Errorf("it holds %v, and is called null", value)
		}
		if isNaN(value) {
			continue
		}
		if type_.Compare(value, least) < 0 || type_.Compare(value, greatest) > 0 {
			return fmt.Errorf("%v is not from %v to %v", value, least, greatest)
		}
	}
	if nulls != bounds.NullCount(page) {
		return fmt.Errorf("%d nulls, not %d", nulls, bounds.NullCount(page))
	}
	return nil
}

func isNaN(value parquet.Value) bool {
	switch value.Kind() {
	case parquet.Float:
		return value.Float() != value.Float()
	case parquet.Double:
		return value.Double() != value.Double()
	}
	return false
}

// checkFilter looks for each value of a column chunk in its bloom filter.
func checkFilter(chunk parquet.ColumnChunk) error {
	pages := chunk.Pages()
	defer pages.Close()
	for {
		page, err := pages.ReadPage()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		values, err := valuesOf(page)
		if err != nil {
			return err
		}
		for _, value := range values {
			if value.IsNull() {
				continue
			}
			found, err := chunk.BloomFilter().Check(value)
			if err != nil {
				return err
			}
			if !found {
				return fmt.Errorf("the bloom filter has no %v", value)
			}
		}
	}
}

func valuesOf(page parquet.Page) ([]parquet.Value, error) {
	values := make([]parquet.Value, page.NumValues())
	for n, reader := 0, page.Values(); n < len(values); {
		count, err := reader.ReadValues(values[n:])
		n += count
		if err != nil && (err != io.EOF || n < len(values)) {
			return nil, err
		}
	}
	return values, nil
}
