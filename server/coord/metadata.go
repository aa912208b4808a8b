package coord

import (
	"slices"
	"time"
)

// Tree is a part of the metadata: a leaf, or a subtree with an order.
type Tree struct {
	// Leaf is the value of a leaf; nil: it is a subtree.
	Leaf []byte
	// Names and Trees are the children, in order.
	Names []string
	Trees []Tree
}

// cost is the number of nodes of a tree, and the size of their names and values.
func (t *Tree) cost(name string) (nodes int, bytes uint64) {
	nodes, bytes = 1, uint64(len(name)+len(t.Leaf))
	for i := range t.Trees {
		n, b := t.Trees[i].cost(t.Names[i])
		nodes, bytes = nodes+n, bytes+b
	}
	return nodes, bytes
}

// node is a node of the metadata in the machine.
type node struct {
	number uint64
	// path leads to it; the root has none.
	path     []string
	leaf     []byte
	names    []string // in the order in which they came
	children map[string]*node
}

// child returns a child, and makes it if there is none: then a leaf becomes a subtree.
func (m *Machine) child(s *space, n *node, name string) *node {
	c := n.children[name]
	if c == nil {
		if n.leaf != nil {
			m.giveBack(s.name, uint64(len(n.leaf)))
			n.leaf = nil
			m.put(n.row(s))
		}
		if n.children == nil {
			n.children = map[string]*node{}
		}
		m.nodes++
		c = &node{number: m.nodes, path: append(slices.Clip(n.path), name)}
		n.children[name] = c
		n.names = append(n.names, name)
		m.addName(s, name)
		m.put(c.row(s))
	}
	return c
}

// removeChild removes a child with all below it.
func (m *Machine) removeChild(s *space, n *node, name string) {
	c := n.children[name]
	m.clearNode(s, c)
	m.gone(MetadataRow{Namespace: s.name, Path: c.path})
	delete(n.children, name)
	n.names = slices.DeleteFunc(n.names, func(other string) bool { return other == name })
	m.dropName(s, name)
}

// clearNode removes the leaf and the children of a node.
func (m *Machine) clearNode(s *space, n *node) {
	m.giveBack(s.name, uint64(len(n.leaf)))
	n.leaf = nil
	for len(n.names) > 0 {
		m.removeChild(s, n, n.names[len(n.names)-1])
	}
}

// SetMetadata puts a tree at a path; nil removes what is there. The path has at least one name.
func (m *Machine) SetMetadata(now time.Time, namespace string, path []string, tree *Tree, out []Effect) ([]Effect, *Error) {
	m.begin(now, out)
	s := m.space(namespace)
	if tree == nil {
		m.removeMetadata(s, path)
		m.tidySpace(s)
		return m.end(), nil
	}
	nodes, bytes := tree.cost(path[len(path)-1])
	nodes += s.missing(path) - 1
	for _, name := range path[:len(path)-1] {
		bytes += uint64(len(name))
	}
	if err := m.roomFor(s, "metadata", bytes, make([]string, nodes)...); err != nil {
		m.tidySpace(s)
		return m.end(), err
	}
	if s.metadata == nil {
		s.metadata = &node{}
	}
	at := s.metadata
	for _, name := range path {
		at = m.child(s, at, name)
	}
	m.clearNode(s, at)
	m.fill(s, at, tree)
	return m.end(), nil
}

// missing is the number of nodes on a path that do not exist.
func (s *space) missing(path []string) int {
	at := s.metadata
	for i, name := range path {
		if at == nil || at.children[name] == nil {
			return len(path) - i
		}
		at = at.children[name]
	}
	return 0
}

func (m *Machine) fill(s *space, n *node, tree *Tree) {
	n.leaf = tree.Leaf
	m.use(s.name, uint64(len(n.leaf)))
	m.put(n.row(s))
	for i := range tree.Trees {
		m.fill(s, m.child(s, n, tree.Names[i]), &tree.Trees[i])
	}
}

// removeMetadata removes what is at a path, and the subtrees above it that become empty.
func (m *Machine) removeMetadata(s *space, path []string) {
	if s.metadata == nil {
		return
	}
	way := []*node{s.metadata}
	for _, name := range path {
		next := way[len(way)-1].children[name]
		if next == nil {
			return
		}
		way = append(way, next)
	}
	for i := len(path) - 1; i >= 0; i-- {
		m.removeChild(s, way[i], path[i])
		if len(way[i].names) > 0 {
			return
		}
	}
}

// Metadata returns what is at a path; false: there is nothing.
func (m *Machine) Metadata(namespace string, path []string) (Tree, bool) {
	s := m.spaces[namespace]
	if s == nil || s.metadata == nil {
		return Tree{}, len(path) == 0
	}
	at := s.metadata
	for _, name := range path {
		if at = at.children[name]; at == nil {
			return Tree{}, false
		}
	}
	return at.tree(), true
}

func (n *node) tree() Tree {
	t := Tree{Leaf: n.leaf, Names: slices.Clone(n.names)}
	for _, name := range n.names {
		t.Trees = append(t.Trees, n.children[name].tree())
	}
	return t
}
