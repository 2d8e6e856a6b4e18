package io.unitycatalog.spark

import java.util

import org.apache.spark.sql.catalyst.analysis.NoSuchTableException
import org.apache.spark.sql.connector.catalog._
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.delta.catalog.DeltaCatalog
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/**
 * A catalog of Spark for tables in Unity Catalog, for tests.
 *
 * Delta 4.4 speaks to Unity Catalog itself where the class of a catalog has this name. Its makers'
 * own catalog of the name is not needed for that, and not published where tests get their jars.
 */
class UCSingleCatalog extends DeltaCatalog {
  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = {
    setDelegateCatalog(new Empty(name))
    super.initialize(name, options)
  }
}

/** What Delta does not do itself: nothing. */
class Empty(catalog: String) extends TableCatalog with SupportsNamespaces {
  override def initialize(name: String, options: CaseInsensitiveStringMap): Unit = ()
  override def name(): String = catalog
  override def listTables(namespace: Array[String]): Array[Identifier] = Array.empty
  override def loadTable(ident: Identifier): Table = throw new NoSuchTableException(ident)
  override def createTable(
      ident: Identifier,
      schema: StructType,
      partitions: Array[Transform],
      properties: util.Map[String, String]): Table = refused("createTable")
  override def createTable(
      ident: Identifier,
      columns: Array[Column],
      partitions: Array[Transform],
      properties: util.Map[String, String]): Table = refused("createTable")
  override def alterTable(ident: Identifier, changes: TableChange*): Table = refused("alterTable")
  override def dropTable(ident: Identifier): Boolean = false
  override def renameTable(from: Identifier, to: Identifier): Unit = refused("renameTable")
  override def listNamespaces(): Array[Array[String]] = Array.empty
  override def listNamespaces(namespace: Array[String]): Array[Array[String]] = Array.empty
  override def namespaceExists(namespace: Array[String]): Boolean = true
  override def loadNamespaceMetadata(namespace: Array[String]): util.Map[String, String] =
    util.Map.of()
  override def createNamespace(
      namespace: Array[String],
      metadata: util.Map[String, String]): Unit = ()
  override def alterNamespace(namespace: Array[String], changes: NamespaceChange*): Unit = ()
  override def dropNamespace(namespace: Array[String], cascade: Boolean): Boolean = false

  private def refused(call: String): Nothing = throw new UnsupportedOperationException(call)
}
